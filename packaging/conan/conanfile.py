"""`conan create packaging/conan` builds the library of this checkout; docs/install.md has more.

The CUDA toolkit is not Conan's: $CUDA_HOME, nvcc on PATH, or /usr/local/cuda."""

import pathlib
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy
from conan.tools.gnu import PkgConfig, PkgConfigDeps
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain


class Graphcache(ConanFile):
    name = 'graphcache'
    description = 'Cache of CUDA graphs keyed by launch configuration'
    license = 'Apache-2.0'
    package_type = 'static-library'
    settings = 'os', 'compiler', 'build_type', 'arch'

    def _checkout(self):
        return pathlib.Path(self.recipe_folder).parents[1]

    def set_version(self):
        header = (self._checkout() / 'include/graphcache/version.h').read_text(encoding='utf-8')
        self.version = '.'.join(re.findall(r'^#define GRAPHCACHE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)', header, re.M))

    def export_sources(self):
        for pattern in 'meson*', 'LICENSE', 'include/*', 'lib/*', 'test/*', 'demo/*', 'tools/*', 'subprojects/*.wrap':
            copy(self, pattern, self._checkout(), self.export_sources_folder)

    def requirements(self):
        # Its headers are in those of graphcache. Any version from the range may stand in, and the system's, too.
        self.requires('abseil/[>=20220623]', transitive_headers=True, transitive_libs=True)

    def build_requirements(self):
        self.tool_requires('meson/[>=1.0.1]')
        self.tool_requires('pkgconf/[*]')

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        basic_layout(self)

    def generate(self):
        toolchain = MesonToolchain(self)
        for option in 'tests', 'demos', 'benchmarks', 'diagnose', 'export':
            toolchain.project_options[option] = 'disabled'
        toolchain.generate()
        PkgConfigDeps(self).generate()

    def build(self):
        meson = Meson(self)
        meson.configure()
        meson.build()

    def package(self):
        Meson(self).install()
        copy(self, 'LICENSE', self.source_folder, pathlib.Path(self.package_folder) / 'licenses')

    def package_info(self):
        # CMake takes the package's own config file, which has both targets.
        self.cpp_info.set_property('cmake_find_mode', 'none')
        self.cpp_info.builddirs = ['lib/cmake/graphcache']
        # hostrt is not in `libs`: other generators would then link it into every program, instead of cudart.
        self.cpp_info.libs = ['graphcache']
        self.cpp_info.system_libs = ['pthread', 'dl']
        # The system's Abseil is no dependency that Conan could ask for libraries. The installed file names them.
        if all(dependency.ref.name != 'abseil' for dependency in self.dependencies.host.values()):
            installed = PkgConfig(self, 'graphcache', str(pathlib.Path(self.package_folder) / 'lib/pkgconfig'))
            self.cpp_info.system_libs += [name for name in installed.libs if name not in ['graphcache', 'dl']]
