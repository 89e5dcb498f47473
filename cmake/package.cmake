# Installation rules, and the CMake package for find_package(tilegrad). The package works in the installation
# and in the build tree.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/tilegrad)
configure_package_config_file(cmake/tilegradConfig.cmake.in tilegradConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(tilegradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/tilegrad_add_plugin.cmake tilegrad_add_plugin.cmake COPYONLY)

install(TARGETS tilegrad EXPORT tilegrad)
if(TILEGRAD_TOOL_NAMES)  # in a separate file, for packages without bin/
  install(TARGETS ${TILEGRAD_TOOL_NAMES} EXPORT tilegradTools)
  install(EXPORT tilegradTools NAMESPACE tilegrad:: FILE tilegradTools.cmake DESTINATION ${package})
  export(EXPORT tilegradTools NAMESPACE tilegrad:: FILE ${PROJECT_BINARY_DIR}/tilegradTools.cmake)
endif()
foreach(header ${TILEGRAD_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tilegrad/${folder})
endforeach()
foreach(file tilegradConfig tilegradConfigVersion tilegrad_add_plugin)
  install(FILES ${PROJECT_BINARY_DIR}/${file}.cmake DESTINATION ${package})
endforeach()
install(EXPORT tilegrad NAMESPACE tilegrad:: FILE tilegradTargets.cmake DESTINATION ${package})
export(EXPORT tilegrad NAMESPACE tilegrad:: FILE ${PROJECT_BINARY_DIR}/tilegradTargets.cmake)
