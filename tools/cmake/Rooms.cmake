# moesim_room(NAME USES libraries...): the static library moesim_NAME from all .cpp below sim/NAME, or an
# interface library while the room holds headers only.
function(moesim_room name)
  cmake_parse_arguments(ROOM "" "" "USES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/sim/${name}/*.cpp)
  if(NOT sources)
    add_library(moesim_${name} INTERFACE)
    target_include_directories(moesim_${name} INTERFACE ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(moesim_${name} INTERFACE ${ROOM_USES})
    return()
  endif()
  add_library(moesim_${name} STATIC ${sources})
  target_include_directories(moesim_${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(moesim_${name} PUBLIC ${ROOM_USES})
  moesim_warnings(moesim_${name})
endfunction()

function(moesim_warnings target)
  # No contraction: the router's softmax must give the same bits on every instruction set.
  # GCC 12 reports -Wrestrict inside its own std::string (GCC PR 105651).
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wno-restrict
                                           -ffp-contract=off)
  if(MOESIM_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
