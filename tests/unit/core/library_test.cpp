#include "core/library.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

#include "core/ending.hpp"

namespace tessera {
namespace {

/// How the process would end by what `f` throws.
template <typename F>
Ending ending_of(F&& f) {
  try {
    f();
  } catch (...) {
    return current_ending();
  }
  return {};
}

TEST(Library, FunctionsAreFoundByName) {
  struct C {
    Library library{"libc.so.6"};
    TESSERA_SYMBOL(atoi)
    TESSERA_SYMBOL(strlen)
  };
  const C c;
  EXPECT_EQ(c.atoi("123"), 123);
  EXPECT_EQ(c.strlen("four"), 4U);
}

TEST(Library, AMissingOneIsAnErrorThatSaysWhatToDo) {
  const Ending ending = ending_of([] { Library("libno_such_library.so.7"); });
  EXPECT_EQ(ending.code, ExitCode::comm);
  EXPECT_EQ(ending.message,
            "libno_such_library.so.7 cannot be opened: libno_such_library.so.7: cannot open shared "
            "object file: No such file or directory; set LD_LIBRARY_PATH to its directory, or load "
            "the machine's CUDA module");
}

TEST(Library, AMissingFunctionIsAnErrorThatNamesTheLibrary) {
  const std::string message =
      ending_of([] { Library("libc.so.6").symbol<void (*)()>("no_such_function"); }).message;
  EXPECT_TRUE(message.starts_with("libc.so.6 has no function no_such_function: ")) << message;
}

}  // namespace
}  // namespace tessera
