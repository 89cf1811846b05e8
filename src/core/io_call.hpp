// The calls of the operating system that touch files: what io makes, hooks see and faults name.
#pragma once

#include "core/enums.hpp"

namespace tessera {

enum class IoCall {
  open,
  size,
  resize,
  allocate,
  queue,
  read,
  write,
  lock,
  sync,
  close,
  rename,
  exchange,
  remove,
  create_directory,
  list
};

template <>
struct EnumWords<IoCall> {
  using enum IoCall;
  static constexpr std::array table = {
      std::pair{open, "open"},     std::pair{size, "size"},
      std::pair{resize, "resize"}, std::pair{allocate, "allocate"},
      std::pair{queue, "queue"},   std::pair{read, "read"},
      std::pair{write, "write"},   std::pair{lock, "lock"},
      std::pair{sync, "sync"},     std::pair{close, "close"},
      std::pair{rename, "rename"}, std::pair{exchange, "exchange"},
      std::pair{remove, "remove"}, std::pair{create_directory, "create_directory"},
      std::pair{list, "list"}};
};

}  // namespace tessera
