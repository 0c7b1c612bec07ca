#pragma once
// The Launcher of the CPU backend.
#include <glade/core/cpu_loops.h>
#include <glade/ops/elementwise/launch.h>
#include <glade/ops/elementwise/vector_bodies.h>

namespace glade::cpu {

inline constexpr Launcher launcher{
    [](const auto& plan, const auto& body, auto* out, const auto*... in) { elementwise(plan, cpu_body(body), out, in...); }};

}  // namespace glade::cpu
