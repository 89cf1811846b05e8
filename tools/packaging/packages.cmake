# Packages of what `cmake --install` installs, made by `cpack` in the build folder: tessera_VERSION_ARCH.deb
# for the Debian or Ubuntu that it was built on, which names the libraries that it needs, and
# tessera-VERSION-SYSTEM-ARCH.tar.zst, for machines that have them.
set(CPACK_GENERATOR DEB TZST)
set(CPACK_PACKAGE_VENDOR "The Tessera project")
set(CPACK_PACKAGE_CONTACT "The Tessera project")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_FILE_NAME "tessera-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin) # the launcher, beside the library
if("${MPI_C_LIBRARIES}" MATCHES mpich)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS mpich)
endif()
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3, python3-matplotlib") # of tools/
include(CPack)
