# cmake --install: the command, its documents beside it (found relative to the program, so the prefix
# may be moved): --component program; and the simulator library for find_package(moesim): --component
# library.
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY MOESIM_ROOMS)
set_target_properties(moesim_simulator PROPERTIES EXPORT_NAME moesim)
install(TARGETS ${rooms} moesim_simulator EXPORT moesim-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/sim/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/moesim/sim
  COMPONENT library FILES_MATCHING PATTERN *.hpp)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/moesim)
install(EXPORT moesim-targets NAMESPACE moesim:: DESTINATION ${package}
  COMPONENT library)
set(documents ${CMAKE_INSTALL_DATADIR}/moesim)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/moesim-config.cmake.in
  ${PROJECT_BINARY_DIR}/moesim-config.cmake INSTALL_DESTINATION ${package} PATH_VARS documents)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moesim-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moesim-config.cmake
  ${PROJECT_BINARY_DIR}/moesim-config-version.cmake DESTINATION ${package} COMPONENT library)

if(MOESIM_COMMAND)
  # A wheel carries the libraries that the program needs in lib/moesim; elsewhere it is empty.
  set_target_properties(moesim PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/moesim")
  install(TARGETS moesim RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  # Made by the program itself when it is linked.
  if(NOT CMAKE_CROSSCOMPILING)
    set(made ${PROJECT_BINARY_DIR}/completion)
    set(share ${CMAKE_INSTALL_DATADIR})
    install(FILES ${made}/moesim DESTINATION ${share}/bash-completion/completions COMPONENT program)
    install(FILES ${made}/_moesim DESTINATION ${share}/zsh/vendor-completions COMPONENT program)
    install(FILES ${made}/moesim.fish DESTINATION ${share}/fish/vendor_completions.d COMPONENT program)
    install(FILES ${made}/moesim.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
  endif()
endif()
# Of both: the library reads them, too.
foreach(component program library)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/profiles ${PROJECT_SOURCE_DIR}/traces
    DESTINATION ${documents} COMPONENT ${component} PATTERN __pycache__ EXCLUDE)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/tools/plot DESTINATION ${documents}
  COMPONENT program FILES_MATCHING PATTERN *.py)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR}
  COMPONENT program)

# cpack: a Debian package of all this, for the system that it was built on.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME moesim)
set(CPACK_PACKAGE_CONTACT "the authors of moesim <moesim@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
  "step times and token loss of Mixture-of-Experts models on GPU clusters")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS
  "python3, python3-numpy, python3-pandas, python3-matplotlib")  # moesim plot
set(CPACK_DEBIAN_PACKAGE_SUGGESTS
  "libfmt-dev, nlohmann-json3-dev, libboost-dev, librandom123-dev, libvalijson-dev, zlib1g-dev")
include(CPack)
