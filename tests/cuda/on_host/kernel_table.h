// The table of an image's kernels, by which the stand-in driver finds and calls them.
#pragma once

#include <type_traits>
#include <utility>

#include "execution.h"

namespace on_host {

template <typename... Arguments>
struct Signature {
  // A trailing entry, so that a kernel without arguments has arrays too.
  static constexpr unsigned char sizes[] = {sizeof(Arguments)..., 0};
  static constexpr unsigned char is_pointer[] = {std::is_pointer_v<Arguments>..., 0};
};

template <auto function>
struct Caller;

template <typename... Arguments, void (*function)(Arguments...)>
struct Caller<function> {
  using Types = Signature<Arguments...>;
  static constexpr unsigned count = sizeof...(Arguments);

  // Arguments lie in the driver's memory, of which nothing shall be reported.
  template <size_t... i>
  __attribute__((no_sanitize("thread"))) static void unpack(void** arguments,
                                                            std::index_sequence<i...>) {
    function(*static_cast<std::remove_cv_t<std::remove_reference_t<Arguments>>*>(arguments[i])...);
  }
  __attribute__((no_sanitize("thread"))) static void call(void** arguments) {
    unpack(arguments, std::make_index_sequence<sizeof...(Arguments)>());
  }
};

template <auto function>
constexpr Kernel describe(const char* name, unsigned max_threads) {
  using Of = Caller<function>;
  return {name, Of::call, Of::count, Of::Types::sizes, Of::Types::is_pointer, max_threads};
}

}  // namespace on_host
