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
else()
  install(FILES shim/bsguard.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
