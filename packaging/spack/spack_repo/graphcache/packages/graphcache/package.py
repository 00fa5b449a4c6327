# Not tried yet. These commands in this checkout build its library:
#   spack repo add packaging/spack/spack_repo/graphcache
#   spack dev-build graphcache@0.3.0
from spack.package import *
from spack_repo.builtin.build_systems.meson import MesonPackage


class Graphcache(MesonPackage):
    """Cache of CUDA graphs keyed by launch configuration."""

    license('Apache-2.0')
    version('0.3.0')

    variant('export', default=False, description='graphcache_export, which renders reports')

    depends_on('cxx', type='build')
    depends_on('meson@1.0.1:', type='build')
    depends_on('pkgconfig', type='build')
    depends_on('python', type='build', when='+export')
    depends_on('abseil-cpp@20220623: cxxstd=20')
    depends_on('cuda@12.4:')
    depends_on('nlohmann-json', when='+export')
    depends_on('prometheus-cpp', when='+export')

    def meson_args(self):
        export = 'enabled' if self.spec.satisfies('+export') else 'disabled'
        return [
            '-Dtoolkit=' + self.spec['cuda'].prefix,
            '-Dexport=' + export,
            '-Ddiagnose=disabled',
            '-Dtests=disabled',
            '-Ddemos=disabled',
            '-Dbenchmarks=disabled',
        ]
