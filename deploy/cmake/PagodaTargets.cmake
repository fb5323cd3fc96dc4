# One target per folder, made by these functions; everything links by alias, so that a typo is an error.

add_library(pagoda_flags INTERFACE)
add_library(pagoda::flags ALIAS pagoda_flags)
target_compile_features(pagoda_flags INTERFACE cxx_std_20)
target_compile_options(
  pagoda_flags
  INTERFACE # nvcc passes on only what is meant for it.
            $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wnon-virtual-dtor;-Wimplicit-fallthrough;-Wno-missing-field-initializers>
            # GCC 12 sees std::variant members as uninitialised.
            $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>
            $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>
            $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${PAGODA_WERROR}>>:-Werror>)
if(PAGODA_SANITIZE)
  target_compile_options(
    pagoda_flags
    INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PAGODA_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  if(PAGODA_SANITIZE MATCHES "undefined")
    # A fifth of the build's time goes into checks at every member access of what AddressSanitizer stops too.
    target_compile_options(pagoda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,object-size,vptr>)
  endif()
  target_link_options(pagoda_flags INTERFACE -fsanitize=${PAGODA_SANITIZE})
  # Compilers have no common name for it.
  target_compile_definitions(pagoda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:PAGODA_SANITIZED>)
endif()
if(PAGODA_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "PAGODA_FUZZERS=ON needs clang, which has libFuzzer: use the preset fuzz.")
  endif()
  # libFuzzer follows the edges of everything that we compile.
  target_compile_options(pagoda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# The version comes from project() alone and reaches C++ through this header.
find_package(Git QUIET)
set(PAGODA_COMMIT unknown)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=12 HEAD
                  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE PAGODA_COMMIT
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/version.h.in ${CMAKE_BINARY_DIR}/generated/pagoda_version.h)

# From nothing, most of the time goes into the same headers again and again: a fast build precompiles the common ones, once per
# kind of target (GCC takes them only with the options they were made with), and compiles several files of a library at once.
# A compiler cache does better with single files.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  option(PAGODA_FAST_BUILD "Precompile common headers, compile files of a library together" OFF)
else()
  option(PAGODA_FAST_BUILD "Precompile common headers, compile files of a library together" ON)
endif()
set(PAGODA_COMMON_HEADERS
    <algorithm> <atomic> <deque> <cmath> <cstdint> <functional> <limits> <map> <memory> <set> <string> <thread> <utility> <vector>
    <absl/container/flat_hash_map.h> <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
    <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/strings/str_split.h> <absl/synchronization/mutex.h>
    <absl/time/clock.h> <absl/time/time.h> <absl/types/optional.h> <absl/types/span.h> <nlohmann/json.hpp>)
# Not CLI11: what its inline functions instantiate would be compiled into every object, which takes longer than most of our files.
set(PAGODA_RPC_HEADERS <grpcpp/grpcpp.h> <google/protobuf/message.h>)
set(PAGODA_TEST_HEADERS <fstream> <gmock/gmock.h> <gtest/gtest.h>)

# pagoda_precompile(TARGET library|test [NO_RPC]): reuses the precompiled headers of its kind.
function(pagoda_precompile target kind)
  cmake_parse_arguments(A "NO_RPC" "" "" ${ARGN})
  if(NOT PAGODA_FAST_BUILD)
    return()
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE folder)
  set(headers ${PAGODA_COMMON_HEADERS})
  set(dependencies pagoda::flags absl::flat_hash_map absl::statusor absl::str_format absl::synchronization absl::time
                   absl::optional absl::span nlohmann_json::nlohmann_json)
  set(name precompiled_${kind})
  if(folder MATCHES "^(tests/)?(daemon|e2e)" AND NOT A_NO_RPC)
    string(APPEND name _rpc)
    list(APPEND headers ${PAGODA_RPC_HEADERS})
    list(APPEND dependencies protobuf::libprotobuf PkgConfig::GRPCPP)
  endif()
  if(kind STREQUAL "test")
    list(APPEND headers ${PAGODA_TEST_HEADERS})
    list(APPEND dependencies GTest::gmock GTest::gtest)
  endif()
  if(NOT TARGET ${name})
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/generated/${name}.cc CONTENT "// Carries the precompiled headers.\n")
    if(kind STREQUAL "test")
      add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/generated/${name}.cc)
      target_compile_options(${name} PRIVATE ${PAGODA_TEST_OPTIONS})
    else()
      add_library(${name} STATIC ${CMAKE_BINARY_DIR}/generated/${name}.cc)
      set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    endif()
    target_link_libraries(${name} PRIVATE ${dependencies})
    target_precompile_headers(${name} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${name})
  if(name MATCHES "_rpc$")
    # As gRPC has it: GCC takes precompiled headers only where the same is defined.
    target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:PkgConfig::GRPCPP,INTERFACE_COMPILE_OPTIONS>)
  endif()
endfunction()

# pagoda_optimize(TARGET): Release builds have -O3 for what computes (kernels, engine, text). What handles calls, and what only
# tests link, has less: the compiler takes a tenth and a third less time for them.
function(pagoda_optimize target)
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE folder)
  if(folder MATCHES "^daemon")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O2>)
  elseif(folder MATCHES "^tests/(daemon|e2e|fixtures|fuzz)")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# pagoda_library(NAME [NO_RPC] [BATCH files] [HDRS ...] [SRCS ...] [DEPS ...] [PRIVATE_DEPS ...]). NO_RPC: without gRPC, though its
# folder has it. BATCH: how many files a fast build compiles at once, where unnamed namespaces allow more than usual.
function(pagoda_library name)
  cmake_parse_arguments(A "NO_RPC" "BATCH" "HDRS;SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  if(A_SRCS)
    add_library(${name} STATIC ${A_SRCS})
    set(scope PUBLIC)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    set(without_rpc)
    if(A_NO_RPC)
      set(without_rpc NO_RPC)
    endif()
    pagoda_precompile(${name} library ${without_rpc})
    pagoda_optimize(${name})
    if(NOT A_BATCH)
      set(A_BATCH 8)
    endif()
    set_target_properties(${name} PROPERTIES UNITY_BUILD ${PAGODA_FAST_BUILD} UNITY_BUILD_BATCH_SIZE ${A_BATCH})
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(pagoda::${name} ALIAS ${name})
  if(A_HDRS)
    target_sources(${name} ${scope} FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${A_HDRS})
  endif()
  target_include_directories(${name} ${scope} ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_link_libraries(${name} ${scope} pagoda::flags ${A_DEPS})
  if(A_PRIVATE_DEPS)
    target_link_libraries(${name} PRIVATE ${A_PRIVATE_DEPS})
  endif()
endfunction()

# A quick run has each test once: asan_tests under AddressSanitizer (engine, parsers, processes), plain_tests in the release
# build, with what measures time from both. asan_more_tests: the rest that links no gRPC.
add_custom_target(plain_tests)
add_custom_target(asan_tests)
add_custom_target(asan_more_tests)
add_custom_target(tsan_tests)

# Tests are compiled for the compiler's speed: what they test is not.
set(PAGODA_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)
if(PAGODA_SANITIZE)
  set(PAGODA_TEST_OPTIONS -O0)
endif()

# pagoda_test(NAME LABEL unit|kernel|e2e|gpu|long [ALSO_PLAIN] SRCS ... DEPS ... [TIMEOUT seconds] [BATCH files]): one executable,
# one CTest entry per case. ALSO_PLAIN: of asan_tests, but in plain_tests too. BATCH: as above.
function(pagoda_test name)
  cmake_parse_arguments(A "ALSO_PLAIN" "LABEL;TIMEOUT;BATCH" "SRCS;DEPS" ${ARGN})
  if(NOT PAGODA_TESTS)
    return()
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  add_executable(${name} ${A_SRCS})
  target_compile_options(${name} PRIVATE ${PAGODA_TEST_OPTIONS})
  target_link_libraries(${name} PRIVATE pagoda::flags ${A_DEPS} GTest::gmock GTest::gtest_main)
  pagoda_precompile(${name} test)
  if(NOT A_BATCH)
    set(A_BATCH 4)
  endif()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${PAGODA_FAST_BUILD} UNITY_BUILD_BATCH_SIZE ${A_BATCH})
  if(A_LABEL STREQUAL "unit" AND CMAKE_CURRENT_SOURCE_DIR MATCHES "/tests/(engine|parallel|fixtures)")
    add_dependencies(tsan_tests ${name})
  endif()
  # The parsers of model files are in the corpora of the fuzzers; the arithmetic of models is long to compile.
  if(A_LABEL STREQUAL "unit" AND CMAKE_CURRENT_SOURCE_DIR MATCHES "/tests/(engine|parallel)"
     AND NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "/tests/engine/model")
    add_dependencies(asan_tests ${name})
    if(A_ALSO_PLAIN)
      add_dependencies(plain_tests ${name})
    endif()
  else()
    add_dependencies(plain_tests ${name})
    if(A_LABEL MATCHES "^(unit|kernel)$")
      add_dependencies(asan_more_tests ${name})
    endif()
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS ${A_LABEL} TIMEOUT ${A_TIMEOUT}
                       WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endfunction()

# pagoda_benchmark(NAME SRCS ... DEPS ...): an executable that prints floor, figure and ratio.
function(pagoda_benchmark name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  if(NOT PAGODA_BENCHMARKS)
    return()
  endif()
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE pagoda::flags ${A_DEPS})
endfunction()
if(PAGODA_TESTS)
  include(GoogleTest)
endif()

# pagoda_proto(NAME [GRPC] PROTOS ... [DEPS ...]): a library of generated code from files under proto/.
function(pagoda_proto name)
  cmake_parse_arguments(A "GRPC" "" "PROTOS;DEPS" ${ARGN})
  set(out ${CMAKE_BINARY_DIR}/generated)
  set(generated)
  foreach(proto ${A_PROTOS})
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(outputs ${out}/${stem}.pb.cc ${out}/${stem}.pb.h)
    set(args --cpp_out=${out})
    if(A_GRPC)
      list(APPEND outputs ${out}/${stem}.grpc.pb.cc ${out}/${stem}.grpc.pb.h)
      list(APPEND args --grpc_out=${out} --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN})
    endif()
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${out}
      COMMAND protobuf::protoc -I${CMAKE_SOURCE_DIR}/proto ${args} ${CMAKE_SOURCE_DIR}/proto/${proto}
      DEPENDS ${CMAKE_SOURCE_DIR}/proto/${proto}
      COMMENT "Generating ${proto}")
    list(APPEND generated ${outputs})
  endforeach()
  add_library(${name} STATIC ${generated})
  add_library(pagoda::${name} ALIAS ${name})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} SYSTEM PUBLIC ${out})
  target_link_libraries(${name} PUBLIC protobuf::libprotobuf ${A_DEPS})
  # Of messages the time goes into libprotobuf; what is generated is for the compiler's speed. AddressSanitizer need not see it.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(PAGODA_SANITIZE STREQUAL "thread")
    target_compile_options(${name} PRIVATE -fsanitize=thread)
  elseif(PAGODA_SANITIZE)
    target_compile_options(${name} PRIVATE -g0)
  endif()
  if(A_GRPC)
    target_link_libraries(${name} PUBLIC PkgConfig::GRPCPP)
  endif()
endfunction()
