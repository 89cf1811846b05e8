// model.h5: the whole tensors as virtual datasets over the rank files. It holds none of their
// bytes.
#include <algorithm>
#include <map>

#include "core/error.hpp"
#include "io/checkpoint_commit.hpp"
#include "io/hdf5.hpp"

namespace tessera::io {
namespace {

using Hdf5Extent = std::vector<hsize_t>;

Hdf5Extent extent_of(std::span<const std::int64_t> values) {
  return {values.begin(), values.end()};
}

/// Where one rank holds boxes of a tensor.
struct Source {
  int rank;
  const DatasetRecord* dataset;
};

/// Maps each box of a rank's dataset, in which the boxes lie one after another.
void map_boxes(hid_t creation, hid_t whole, const Source& source) {
  const DatasetRecord& d = *source.dataset;
  const auto elements = static_cast<hsize_t>(d.elements());
  const H5Space line(H5_TRY(H5Screate_simple(1, &elements, nullptr)));
  const std::string file = rank_file_name(source.rank), name = '/' + d.name();
  hsize_t first = 0;
  for (const Box& box : d.boxes) {
    const Hdf5Extent start = extent_of(d.shape.used(box.start));
    const Hdf5Extent count = extent_of(d.shape.used(box.count));
    const auto length = static_cast<hsize_t>(box.elements());
    H5_TRY(
        H5Sselect_hyperslab(whole, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr));
    H5_TRY(H5Sselect_hyperslab(line, H5S_SELECT_SET, &first, nullptr, &length, nullptr));
    H5_TRY(H5Pset_virtual(creation, whole, file.c_str(), name.c_str(), line));
    first += length;
  }
}

void write_tensor(hid_t file, std::span<const Source> sources) {
  const DatasetRecord& any = *sources.front().dataset;
  const Hdf5Extent extent = extent_of(any.shape.extents());
  const H5Space whole(H5_TRY(H5Screate_simple(any.shape.axes, extent.data(), nullptr)));
  const H5List creation(H5_TRY(H5Pcreate(H5P_DATASET_CREATE)));
  for (const Source& source : sources) map_boxes(creation, whole, source);

  const H5List links(H5_TRY(H5Pcreate(H5P_LINK_CREATE)));
  H5_TRY(H5Pset_create_intermediate_group(links, 1));
  H5_TRY(H5Sselect_all(whole));
  const H5Type type = hdf5_type(any.type);
  const H5Dataset dataset(
      H5_TRY(H5Dcreate2(file, any.name().c_str(), type, whole, links, creation, H5P_DEFAULT)));
  hdf5_name_type(dataset, any.type);
}

}  // namespace

void write_model_file(const std::filesystem::path& path, std::span<const RankPart> parts) {
  std::map<std::string, std::vector<Source>> tensors;  // by state/tensor
  for (const RankPart& part : parts) {
    for (const DatasetRecord& d : part.datasets) tensors[d.name()].push_back({part.rank, &d});
  }
  H5File file = hdf5_create(path.c_str());
  for (const auto& [name, sources] : tensors) write_tensor(file, sources);

  const auto holds = [&](const char* state) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return tensor.second.front().dataset->state == state;
    });
  };
  if (holds("master") && !holds("parameters"))
    H5_TRY(H5Lcreate_soft("/master", file, "/parameters", H5P_DEFAULT, H5P_DEFAULT));
  file.close();
}

}  // namespace tessera::io
