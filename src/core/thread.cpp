#include "core/thread.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>

#include "core/error.hpp"

namespace tessera {

void try_within_a_second(std::function<void()> work) {
  using namespace std::chrono_literals;
  try {
    const auto done = std::make_shared<std::atomic<bool>>(false);
    const auto guarded = [done, work = std::move(work)] {
      try {
        work();
      } catch (...) {  // the exit code must be enough
      }
      *done = true;
    };
    try {
      start_thread("last words", guarded).detach();
    } catch (const MemoryError&) {  // better said at the risk of waiting than not at all
      guarded();
    }
    const auto until = std::chrono::steady_clock::now() + 1s;
    while (!*done && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(2ms);
  } catch (const std::bad_alloc&) {  // the exit code must be enough
  }
}

void check_threads(int count) {
  std::atomic<bool> all = false;
  std::vector<std::jthread> threads;
  const auto let_go = [&] {
    all = true;
    all.notify_all();
  };
  try {
    threads.reserve(static_cast<std::size_t>(std::max(0, count)));
    for (int i = 0; i < count; ++i)
      threads.push_back(start_thread("team", [&all] { all.wait(false); }));
  } catch (...) {
    let_go();
    throw;
  }
  let_go();
}

}  // namespace tessera
