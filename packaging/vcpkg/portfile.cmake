# `vcpkg install graphcache --overlay-ports=packaging/vcpkg` builds the library of this checkout.
# The CUDA toolkit is not vcpkg's: $CUDA_HOME (which VCPKG_KEEP_ENV_VARS must name), nvcc on PATH, or /usr/local/cuda.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

vcpkg_configure_meson(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -Dtests=disabled -Ddemos=disabled -Dbenchmarks=disabled -Ddiagnose=disabled -Dexport=disabled
)
vcpkg_install_meson()
vcpkg_fixup_pkgconfig()

# The config file finds the prefix from where it is. It must stay there, and has the library of the release alone.
set(VCPKG_POLICY_SKIP_MISPLACED_CMAKE_FILES_CHECK enabled)
set(VCPKG_POLICY_SKIP_LIB_CMAKE_MERGE_CHECK enabled)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/lib/cmake")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
