#include "io/hdf5_driver.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/ending.hpp"
#include "io/file.hpp"
#include "io/hdf5.hpp"

namespace tessera::io {
namespace {

struct DriverFile {
  H5FD_t base;  // first: HDF5 knows this file by its address
  File* file;
  haddr_t allocated;
  haddr_t end;
};

DriverFile& of(H5FD_t* base) { return *reinterpret_cast<DriverFile*>(base); }
const DriverFile& of(const H5FD_t* base) { return *reinterpret_cast<const DriverFile*>(base); }

/// No exception may pass through HDF5: a failure becomes an entry of its error stack.
template <typename Work>
herr_t guarded(Work&& work) {
  try {
    work();
    return 0;
  } catch (const std::exception& e) {
    if (current_ending().code == ExitCode::memory) {
      H5Epush2(H5E_DEFAULT, __FILE__, "file driver", __LINE__, H5E_ERR_CLS, H5E_RESOURCE,
               H5E_NOSPACE, "%s", e.what());
      return -1;
    }
    H5Epush2(H5E_DEFAULT, __FILE__, "file driver", __LINE__, H5E_ERR_CLS, H5E_VFL, H5E_WRITEERROR,
             "%s", e.what());
    return -1;
  }
}

H5FD_t* open_file(const char* name, unsigned flags, hid_t, haddr_t) {
  const OpenMode mode = (flags & (H5F_ACC_TRUNC | H5F_ACC_CREAT)) != 0 ? OpenMode::create
                        : (flags & H5F_ACC_RDWR) != 0                  ? OpenMode::update
                                                                       : OpenMode::read;
  DriverFile* opened = nullptr;
  guarded([&] {
    auto file = std::make_unique<File>(name, mode);
    const auto size = static_cast<haddr_t>(file->size());
    opened = new DriverFile{.base = {}, .file = file.release(), .allocated = 0, .end = size};
  });
  return opened != nullptr ? &opened->base : nullptr;
}

herr_t close_file(H5FD_t* base) {
  const std::unique_ptr<DriverFile> driver(&of(base));
  const std::unique_ptr<File> file(driver->file);
  return guarded([&] { file->close(); });
}

herr_t features(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA |
           H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t get_allocated(const H5FD_t* base, H5FD_mem_t) { return of(base).allocated; }
herr_t set_allocated(H5FD_t* base, H5FD_mem_t, haddr_t address) {
  of(base).allocated = address;
  return 0;
}
haddr_t get_end(const H5FD_t* base, H5FD_mem_t) { return of(base).end; }

herr_t read_bytes(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* out) {
  return guarded([&] {
    const haddr_t there = std::min<haddr_t>(size, std::max(of(base).end, address) - address);
    auto* bytes = static_cast<std::byte*>(out);
    of(base).file->read(static_cast<std::int64_t>(address), {bytes, there});
    std::memset(bytes + there, 0, size - there);  // allocated, but not written yet
  });
}

herr_t write_bytes(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, size_t size,
                   const void* data) {
  return guarded([&] {
    of(base).file->write(static_cast<std::int64_t>(address),
                         {static_cast<const std::byte*>(data), size});
    of(base).end = std::max<haddr_t>(of(base).end, address + size);
  });
}

herr_t resize(H5FD_t* base, hid_t, hbool_t) {
  if (of(base).end == of(base).allocated) return 0;
  return guarded([&] {
    of(base).file->resize(static_cast<std::int64_t>(of(base).allocated));
    of(base).end = of(base).allocated;
  });
}

}  // namespace

void hdf5_use_file_driver(hid_t access) {
  static const H5FD_class_t driver = [] {
    H5FD_class_t d{};
    d.name = "tessera";
    d.maxaddr = haddr_t{1} << 62;
    d.fc_degree = H5F_CLOSE_SEMI;
    d.open = open_file;
    d.close = close_file;
    // Without `cmp` a file is opened once, as it shall be. With it HDF5 first tries to open it as
    // it is, which would keep an error of that call to itself.
    d.query = features;
    d.get_eoa = get_allocated;
    d.set_eoa = set_allocated;
    d.get_eof = get_end;
    d.read = read_bytes;
    d.write = write_bytes;
    d.truncate = resize;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), std::begin(d.fl_map));
    return d;
  }();
  static const hid_t id = H5_TRY(H5FDregister(&driver));
  H5_TRY(H5Pset_driver(access, id, nullptr));
}

}  // namespace tessera::io
