#pragma once
// How Python names the ways to compute the recurrence.
#include <string>

#include <glade/core/error.h>
#include <glade/ops/linear_attention/linear_attention.h>

namespace glade::python {

inline Algorithm to_algorithm(const std::string& operation, const std::string& name) {
  if (name == "auto") return Algorithm::automatic;
  if (name == "recurrent") return Algorithm::recurrent;
  if (name == "chunk") return Algorithm::chunk;
  throw ValueError(operation + ": algorithm is '" + name + "', expected auto, recurrent or chunk");
}

}  // namespace glade::python
