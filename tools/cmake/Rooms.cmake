# moesim_room(NAME USES libraries...): the static library moesim_NAME from all .cpp below sim/NAME, or an
# interface library while the room holds headers only. MOESIM_ROOMS lists them.
function(moesim_room name)
  cmake_parse_arguments(ROOM "" "" "USES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/sim/${name}/*.cpp)
  if(NOT sources)
    add_library(moesim_${name} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(moesim_${name} STATIC ${sources})
    set(scope PUBLIC)
    moesim_warnings(moesim_${name})
  endif()
  set_target_properties(moesim_${name} PROPERTIES EXPORT_NAME ${name})
  # Includes are written from the root of the project: "sim/base/units.hpp".
  target_include_directories(moesim_${name} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/moesim>)
  target_compile_features(moesim_${name} ${scope} cxx_std_20)
  target_link_libraries(moesim_${name} ${scope} ${ROOM_USES})
  set_property(GLOBAL APPEND PROPERTY MOESIM_ROOMS moesim_${name})
endfunction()

function(moesim_warnings target)
  # No contraction: the router's softmax must give the same bits on every instruction set.
  # GCC 12 reports -Wrestrict inside its own std::string (GCC PR 105651); clang does not know it.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -ffp-contract=off)
  if(MOESIM_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
