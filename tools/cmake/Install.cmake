# cmake --install: the command, its documents beside it (found relative to the program, so the prefix
# may be moved), and the simulator library for find_package(moesim).
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY MOESIM_ROOMS)
set_target_properties(moesim_simulator PROPERTIES EXPORT_NAME moesim)
install(TARGETS ${rooms} moesim_simulator EXPORT moesim-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/sim/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/moesim/sim
  FILES_MATCHING PATTERN *.hpp)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/moesim)
install(EXPORT moesim-targets NAMESPACE moesim:: DESTINATION ${package})
set(documents ${CMAKE_INSTALL_DATADIR}/moesim)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/moesim-config.cmake.in
  ${PROJECT_BINARY_DIR}/moesim-config.cmake INSTALL_DESTINATION ${package} PATH_VARS documents)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moesim-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moesim-config.cmake
  ${PROJECT_BINARY_DIR}/moesim-config-version.cmake DESTINATION ${package})

if(MOESIM_COMMAND)
  install(TARGETS moesim RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(folder profiles traces)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${documents}
    PATTERN __pycache__ EXCLUDE)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/tools/plot DESTINATION ${documents}
  FILES_MATCHING PATTERN *.py)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
