"""The program of test/package, built with the package by CMake and by pkg-config, and run on hostrt."""

import pathlib
import subprocess

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.gnu import PkgConfigDeps


class TestPackage(ConanFile):
    settings = 'os', 'compiler', 'build_type', 'arch'

    def requirements(self):
        self.requires(self.tested_reference_str)

    def build_requirements(self):
        self.tool_requires('pkgconf/[*]')

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.extra_cxxflags = ['-isystem', self._toolkit_include()]
        toolchain.generate()
        CMakeDeps(self).generate()
        PkgConfigDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder=str(self._checkout() / 'test/package/program'))
        cmake.build()
        # The package has a file for pkg-config from Conan, which knows the library alone: hostrt is given by name.
        package = self.dependencies['graphcache']
        self.run(
            f'c++ -std=c++20 -isystem {self._toolkit_include()} -DPACKAGE_VERSION=\'"{package.ref.version}"\' '
            f'{self._checkout()}/test/package/program/main.cc '
            f'$(PKG_CONFIG_PATH={self.generators_folder} pkg-config --cflags --libs graphcache) '
            f'{package.cpp_info.libdirs[0]}/libgraphcache_hostrt.a -o program_by_pkg_config'
        )

    def test(self):
        if can_run(self):
            for program in 'program', 'program_by_pkg_config':
                self.run(str(pathlib.Path(self.build_folder) / program), env='conanrun')

    def _checkout(self):
        return pathlib.Path(self.recipe_folder).parents[2]

    def _toolkit_include(self):
        found = subprocess.run([self._checkout() / 'lib/find_toolkit'], check=True, capture_output=True, text=True)
        return found.stdout.splitlines()[1]
