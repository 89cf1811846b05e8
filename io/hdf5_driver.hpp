// HDF5's own I/O through io/'s File: its metadata are counted, checked and made to fail in tests
// like everything else, and its errors carry the file's name and the system's reason.
#pragma once

#include <hdf5.h>

namespace tessera::io {

/// Sets the driver of a file-access property list.
void hdf5_use_file_driver(hid_t access);

}  // namespace tessera::io
