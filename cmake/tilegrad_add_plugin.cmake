# tilegrad_add_plugin(NAME SOURCE...) builds NAME.so for `gradcheck --plugin`. It does not link the library:
# the loaded plugin uses the one inside gradcheck.
function(tilegrad_add_plugin name)
  add_library(${name} MODULE ${ARGN})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX .so)
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_include_directories(${name} PRIVATE $<TARGET_PROPERTY:tilegrad::tilegrad,INTERFACE_INCLUDE_DIRECTORIES>)
endfunction()
