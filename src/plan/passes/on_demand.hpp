// Matrices of experts that nobody asks for stay where they are.
#pragma once

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// Where few experts have rows, their matrices are fetched once tokens are dispatched, and only
/// those that have (Eliseev and Mazur 2023), in the place of all ahead of their use: without
/// training, where the host knows the rows, and none but the products of rows that become known at
/// once read what is fetched. To be called once all fetches are there.
void fetch_on_demand(Plan& plan, const PlanInputs& inputs);

}  // namespace tessera::plan
