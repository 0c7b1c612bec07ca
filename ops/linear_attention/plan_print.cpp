// Plans as text and as JSON.
#include <cmath>

#include <nlohmann/json.hpp>

#include <glade/core/dtype.h>
#include <glade/core/format.h>
#include <glade/core/json.h>
#include <glade/ops/linear_attention/plan.h>

namespace glade {

namespace {

using Json = nlohmann::ordered_json;

void add_segments(Json& json, const ChunkSegments& plan) {
  json["segments"] = plan.segments;
  json["segment_chunks"] = plan.segment_chunks;
}

Json describe(const CpuChunkPlan& plan) { return {{"chunk_tokens", plan.tokens}}; }

Json describe(const RecurrentPassPlan& plan) {
  return {{"inner", plan.inner},     {"warps", plan.warps},       {"blocks_per_head", plan.blocks},
          {"columns", plan.columns}, {"segments", plan.segments}, {"segment_tokens", plan.segment_tokens}};
}

Json describe(const ChunkSegments& plan) {
  Json json;
  add_segments(json, plan);
  return json;
}

Json describe(const Sm90PassPlan& plan) {
  Json json{{"block_channels", plan.wide_blocks || plan.wide_tma ? 2 * kChunkTokens : kChunkTokens}};
  if (plan.wide_tma) json["wide_tma"] = true;
  if (plan.shared_gates) json["shared_gates"] = true;
  if (plan.shared_rows) json["cluster"] = 2;
  if (plan.gates_first) json["gates_first"] = true;
  add_segments(json, plan);
  if (plan.segments > 1) json["segment_states"] = plan.finds_states ? "same_pass" : plan.scan_for_states ? "state_scan" : "pass";
  if (plan.share > 0) json["share"] = std::round(10 * plan.share) / 10;
  if (plan.key_parts > 1) json["key_parts"] = plan.key_parts;
  return json;
}

Json describe(const Sm90IntraChunkPlan& plan) {
  Json json;
  add_segments(json, plan);
  json["scan_block_keys"] = plan.boundary_key_tiles * kChunkTokens;
  json["key_parts"] = plan.key_parts;
  if (plan.beside_scan) json["beside_scan"] = true;
  if (plan.reverse_scan) json["reverse_scan"] = describe(static_cast<const ChunkSegments&>(plan.gradients));
  return json;
}

Json describe(const ConstantDecayPlan& plan) {
  return {{"segments", plan.segments}, {"blocks", plan.blocks}, {"scan_blocks", plan.scan_blocks}};
}

Json describe(const AttentionPlan::Forward& plan) {
  Json json{{"kernels", kernels_name(plan.kernels)}};
  switch (plan.kernels) {
    case AttentionKernels::cpu_chunk: json.update(describe(plan.cpu_chunk)); break;
    case AttentionKernels::recurrent:
    case AttentionKernels::few_tokens:
    case AttentionKernels::float_chunks:
    case AttentionKernels::warp_chunks: json.update(describe(plan.recurrent)); break;
    case AttentionKernels::chunk_mma: json.update(describe(plan.mma)); break;
    case AttentionKernels::sm90_pass: json.update(describe(plan.pass)); break;
    case AttentionKernels::sm90_constant_decay: json.update(describe(plan.constant_decay)); break;
    default: break;
  }
  json["keeps_states"] = plan.keeps_states;
  if (plan.keeps_output) json["keeps_output"] = true;
  return json;
}

Json describe(const AttentionPlan::Backward& plan) {
  Json json{{"kernels", kernels_name(plan.kernels)}};
  switch (plan.kernels) {
    case AttentionKernels::cpu_recurrent: json["checkpoint_interval"] = plan.checkpoint_interval; break;
    case AttentionKernels::cpu_chunk: json["checkpoint_interval"] = plan.cpu_chunk.checkpoint_interval; break;
    case AttentionKernels::recurrent:
    case AttentionKernels::few_tokens:
    case AttentionKernels::float_chunks:
    case AttentionKernels::warp_chunks:
      json["checkpoint_interval"] = plan.checkpoint_interval;
      json["dq, dk"] = describe(plan.values_inner);
      json["dv"] = describe(plan.keys_inner);
      if (plan.value_parts > 1) json["value_parts"] = plan.value_parts;
      break;
    case AttentionKernels::chunk_mma: json.update(describe(plan.mma)); break;
    case AttentionKernels::sm90_pass:
      json["dv"] = describe(plan.values);
      json["dq, dk"] = describe(plan.keys);
      json["at_once"] = plan.at_once;
      json["values_last"] = plan.values_last;
      break;
    case AttentionKernels::sm90_intra_chunk: json.update(describe(plan.intra_chunk)); break;
    case AttentionKernels::sm90_constant_decay: json.update(describe(plan.constant_decay)); break;
    default: break;
  }
  json["reuses_states"] = plan.reuses_states;
  return json;
}

Json describe(const AttentionProblem& p) {
  Json gates = Json::array();
  for (const auto& [given, name] : {std::pair(p.g, "g"), {p.g_gamma, "g_gamma"}, {p.gk, "gk"}, {p.gv, "gv"}})
    if (given) gates.push_back(name);
  Json json{{"device", p.device.name()},
            {"dtype", dtype_name(p.dtype)},
            {"sequences", p.sequences},
            {"length", p.length},
            {"tokens", p.all_tokens()},
            {"heads", p.heads},
            {"kv_heads", p.kv_heads},
            {"K", p.K},
            {"V", p.V},
            {"gates", std::move(gates)},
            {"float_gates", p.float_gates},
            {"packed", p.packed},
            {"reverse", p.reverse}};
  if (p.device.is_cuda())
    json["gpu"] = {
        {"multiprocessors", p.gpu.multiprocessors}, {"compute_capability", p.gpu.compute_capability}, {"sm90", p.gpu.sm90}};
  return json;
}

Json describe(const AttentionPlan& plan) {
  AttentionProblem asked = plan.problem;
  asked.K = plan.K, asked.V = plan.V;
  Json json{{"problem", describe(asked)}};
  if (plan.has_zeros()) json["padded"] = {{"K", plan.problem.K}, {"V", plan.problem.V}};
  json["forward"] = describe(plan.forward);
  if (plan.has_backward()) json["backward"] = describe(plan.backward);
  return json;
}

/// "sm90_pass: segments 4, segment_chunks 8, dv (segments 2, ...)"
std::string text_of(const Json& json) {
  std::string text;
  for (const auto& [name, value] : json.items()) {
    if (name == "kernels") continue;
    if (!text.empty()) text += ", ";
    text += name;
    if (value.is_object()) text += " (" + text_of(value) + ")";
    else text += ' ' + (value.is_string() ? value.get<std::string>() : dump_json(value));
  }
  return text;
}

std::string line_of(const char* pass, const Json& json) {
  const std::string details = text_of(json);
  return std::string(pass) + json["kernels"].get<std::string>() + (details.empty() ? "" : ": " + details);
}

}  // namespace

const char* kernels_name(AttentionKernels kernels) {
  switch (kernels) {
    case AttentionKernels::cpu_recurrent: return "cpu_recurrent";
    case AttentionKernels::cpu_chunk: return "cpu_chunk";
    case AttentionKernels::recurrent: return "recurrent";
    case AttentionKernels::decode_step: return "decode_step";
    case AttentionKernels::few_tokens: return "few_tokens";
    case AttentionKernels::warp_chunks: return "warp_chunks";
    case AttentionKernels::float_chunks: return "float_chunks";
    case AttentionKernels::chunk_mma: return "chunk_mma";
    case AttentionKernels::sm90_pass: return "sm90_pass";
    case AttentionKernels::sm90_constant_decay: return "sm90_constant_decay";
    case AttentionKernels::sm90_intra_chunk: return "sm90_intra_chunk";
  }
  return "";
}

std::string AttentionPlan::to_string() const {
  const Json json = describe(*this);
  std::string text;
  if (has_zeros()) text = fmt::format("channels: {} x {}, filled up with zeros to {} x {}\n", K, V, problem.K, problem.V);
  text += line_of("forward:  ", json["forward"]);
  if (json.contains("backward")) text += '\n' + line_of("backward: ", json["backward"]);
  return text;
}

std::string AttentionPlan::to_json() const { return dump_json(describe(*this)); }

}  // namespace glade
