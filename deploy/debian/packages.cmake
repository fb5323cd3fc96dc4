# Packages by CPack, one for each component: cmake --preset package && cmake --build --preset package && (cd build/package && cpack)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME pagoda)
set(CPACK_PACKAGE_VENDOR Pagoda)
set(CPACK_PACKAGE_CONTACT "The Pagoda authors <pagoda@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Daemon that serves large language models over gRPC and HTTP")
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL daemon)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)

set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME pagoda)
set(CPACK_COMPONENT_DAEMON_DESCRIPTION
    "Continuous batching, a paged KV cache with prefix reuse, OpenAI's API and Prometheus metrics,\nfor models in the Hugging Face layout, on CPUs; pagoda-cuda adds NVIDIA GPUs.")
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA
    ${CMAKE_CURRENT_LIST_DIR}/postinst ${CMAKE_CURRENT_LIST_DIR}/prerm ${CMAKE_CURRENT_LIST_DIR}/postrm
    ${CMAKE_CURRENT_LIST_DIR}/conffiles)

if(PAGODA_CUDA_ENABLED)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME pagoda-cuda)
  set(CPACK_COMPONENT_CUDA_DESCRIPTION "The module with which pagoda computes on NVIDIA GPUs.")
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "pagoda (= ${PROJECT_VERSION})")
  # Debian owns no such libraries: NVIDIA's packages do, and dpkg-shlibdeps leaves out what it does not know.
  set(CPACK_DEBIAN_CUDA_PACKAGE_RECOMMENDS "libcublas-${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR}, libnccl2")
endif()
include(CPack)
