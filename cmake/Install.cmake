# Where things lie once installed. The library finds the Python half beside itself, so that the folder of both may be moved
# anywhere. BSG_HOME is that folder, relative to the prefix: the wheel has it inside its package, and nothing outside.
if(SKBUILD)
  set(BSG_HOME native)
else()
  set(BSG_HOME ${CMAKE_INSTALL_LIBDIR}/bsguard)
endif()

install(TARGETS bsguard LIBRARY DESTINATION ${BSG_HOME})
install(TARGETS bsguard-options RUNTIME DESTINATION ${BSG_HOME})
install(DIRECTORY hooks/framework/ DESTINATION ${BSG_HOME}/bsguard
  FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
if(SKBUILD)
  install(FILES shim/bsguard.h DESTINATION ${BSG_HOME})
  install(FILES docs/man/bsguard.1 DESTINATION ${SKBUILD_DATA_DIR}/share/man/man1)
else()
  install(FILES shim/bsguard.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN man EXCLUDE)

  set(page ${PROJECT_BINARY_DIR}/bsguard.7)
  add_custom_command(OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:bsguard-options> -DIN=${PROJECT_SOURCE_DIR}/docs/man/bsguard.7.in
      -DOUT=${page} -DPROJECT_VERSION=${PROJECT_VERSION} -P ${PROJECT_SOURCE_DIR}/cmake/ManualPage.cmake
    DEPENDS bsguard-options docs/man/bsguard.7.in cmake/ManualPage.cmake VERBATIM)
  add_custom_target(manual_page ALL DEPENDS ${page})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man7)
  install(FILES docs/man/bsguard.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()

# cpack -G DEB: the library and the Python half. The command `bsguard` comes by pip, whose packages Debian has only in part.
set(CPACK_PACKAGE_CONTACT "The bsguard developers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libunwind8")
set(CPACK_STRIP_FILES ON)
include(CPack)
