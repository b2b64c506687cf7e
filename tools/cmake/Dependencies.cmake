# Everything the simulator needs, all of it Debian packages; tools/quickstart installs them.
# Boost brings its own package file; CMake's search for it is gone from 3.30 on.
if(POLICY CMP0167)
  cmake_policy(SET CMP0167 NEW)
endif()
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost 1.71 REQUIRED COMPONENTS program_options)
find_package(Python3 COMPONENTS Interpreter)
find_package(ZLIB)
if(NOT ZLIB_FOUND)
  message(STATUS "zlib is missing (zlib1g-dev): packed tables (.csv.gz) have to be unpacked by hand")
endif()

find_package(yaml-cpp QUIET)
if(NOT yaml-cpp_FOUND)
  message(STATUS "yaml-cpp is missing (libyaml-cpp-dev): --config takes .json alone")
endif()

foreach(header IN ITEMS Random123/philox.h valijson/validator.hpp)
  string(MAKE_C_IDENTIFIER "HAVE_${header}" found)
  find_path(${found} ${header})
  if(NOT ${found})
    message(FATAL_ERROR "${header} is missing: install librandom123-dev and libvalijson-dev "
                        "(tools/quickstart does)")
  endif()
endforeach()

# Optional: the oracle of the network's tests.
find_path(SIMGRID_HEADER simgrid/s4u.hpp)
find_library(SIMGRID_LIBRARY simgrid)
mark_as_advanced(SIMGRID_HEADER SIMGRID_LIBRARY)
