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
    moesim_precompile(moesim_${name})
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

# Optimises less in the builds that test: for sources whose own time is not felt (assertions, options,
# reports), which compile faster so.
function(moesim_light_options target)
  if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    target_compile_options(${target} PRIVATE
      $<$<AND:$<CONFIG:RelWithDebInfo>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  endif()
endfunction()

# The headers that most sources read first: nearly half the time of a build. Small on purpose: with
# nlohmann/json.hpp it would take each source longer to load than it saves. GCC takes a precompiled
# header into a target of other macros or options only if they do not matter to it, and says so.
set(moesim_common_headers <algorithm> <cmath> <cstdint> <functional> <map> <optional> <string>
  <unordered_map> <vector> <fmt/format.h>)

# moesim_precompiled(NAME headers... USES libraries...): the target NAME, whose precompiled headers
# moesim_precompile(TARGET NAME) gives to others.
function(moesim_precompiled name)
  cmake_parse_arguments(HEADERS "" "" "USES" ${ARGN})
  set(source ${PROJECT_BINARY_DIR}/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "// ${name}\n")
  add_library(${name} OBJECT ${source})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_link_libraries(${name} PRIVATE ${HEADERS_USES})
  moesim_warnings(${name})
  target_precompile_headers(${name} PRIVATE ${HEADERS_UNPARSED_ARGUMENTS})
  moesim_precompiled_options(${name})
endfunction()

# moesim_precompile(TARGET [NAME]): its sources start with the precompiled headers of NAME, by default
# moesim_precompiled_common.
function(moesim_precompile target)
  set(name moesim_precompiled_common)
  if(ARGC GREATER 1)
    set(name ${ARGV1})
  endif()
  if(MOESIM_PRECOMPILED)
    target_precompile_headers(${target} REUSE_FROM ${name})
    moesim_precompiled_options(${target})
  endif()
endfunction()

# GCC only. ccache asks for -fpch-preprocess to know a source with precompiled headers again;
# CCACHE_SLOPPINESS must hold pch_defines and time_macros besides. GCC 12 takes a precompiled <string>
# for the project's own code and warns of the bounds of its copies, which differ with the length of the
# project's path; builds without precompiled headers keep these warnings.
function(moesim_precompiled_options target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(options -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
  endif()
endfunction()

if(MOESIM_PRECOMPILED)
  moesim_precompiled(moesim_precompiled_common ${moesim_common_headers}
    USES fmt::fmt nlohmann_json::nlohmann_json Boost::headers Threads::Threads)
endif()
