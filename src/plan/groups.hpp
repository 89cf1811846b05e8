// The groups that a rank's plans talk over.
#pragma once

#include <array>

#include "comm/group.hpp"
#include "core/mesh.hpp"

namespace tessera::plan {

/// A group of ranks and what its calls are. The data ranks are two groups: those whose collectives
/// are under way at the same time must not take each other's messages. So are neighbours in the
/// pipeline, down and up.
struct GroupUse {
  MeshGroup ranks;
  comm::Traffic traffic;
};

/// In the order in which every rank of the job makes them (trap 2).
inline constexpr std::array kGroupUses = {
    GroupUse{MeshGroup::world, comm::Traffic::words},
    GroupUse{MeshGroup::data, comm::Traffic::replicas},  // of parameters
    GroupUse{MeshGroup::data, comm::Traffic::replicas},  // of gradients
    GroupUse{MeshGroup::tensor, comm::Traffic::collectives},
    GroupUse{MeshGroup::pipeline, comm::Traffic::messages},  // forward
    GroupUse{MeshGroup::pipeline, comm::Traffic::messages},  // backward
    GroupUse{MeshGroup::ends, comm::Traffic::collectives}};

/// Whether groups of the kind have several ranks; the others need no communicator.
inline bool has_several(const Mesh& mesh, MeshGroup ranks) {
  return mesh.group_of(0, ranks).count > 1;
}

}  // namespace tessera::plan
