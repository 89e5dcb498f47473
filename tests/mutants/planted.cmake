# Builds a copy of the tree that contains every mutant of faults/. TG_MUTANT=number switches one on at run time.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/plant.py ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/planted
                RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "The mutants could not be inserted")
endif()
enable_testing()
set(TILEGRAD_MUTANTS OFF)
set(TILEGRAD_TESTS ON)
set(TILEGRAD_TOOLS ON)
set(TILEGRAD_INSTALL OFF)
add_subdirectory(${PROJECT_BINARY_DIR}/planted ${PROJECT_BINARY_DIR}/mutants)
