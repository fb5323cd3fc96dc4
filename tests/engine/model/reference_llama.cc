#include "tests/engine/model/reference_llama.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace pagoda::engine {
namespace {

using Vector = std::vector<double>;

class ReferenceLlama {
 public:
  explicit ReferenceLlama(const fixtures::ModelFiles& model) : model_(model) {
    const nlohmann::json& config = model.config;
    num_layers_ = config["num_hidden_layers"];
    num_heads_ = config["num_attention_heads"];
    num_kv_heads_ = config.value("num_key_value_heads", num_heads_);
    head_dim_ = config.value("head_dim", config["hidden_size"].get<size_t>() / num_heads_);
    eps_ = config["rms_norm_eps"];
    theta_ = config.value("rope_theta", 10000.0);
    tied_ = config.value("tie_word_embeddings", false);
    if (config.contains("sliding_window") && config["sliding_window"].is_number()) {
      window_ = config["sliding_window"];
    }
  }

  std::vector<Vector> Run(const std::vector<uint32_t>& tokens) const {
    std::vector<Vector> hidden;
    for (uint32_t token : tokens) hidden.push_back(Row("model.embed_tokens.weight", token));
    for (size_t layer = 0; layer < num_layers_; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      Attend(prefix, hidden);
      for (Vector& h : hidden) Add(h, Mlp(prefix, Norm(prefix + "post_attention_layernorm", h)));
    }
    std::vector<Vector> logits;
    for (const Vector& h : hidden) {
      logits.push_back(Multiply(tied_ ? "model.embed_tokens" : "lm_head", Norm("model.norm", h)));
    }
    return logits;
  }

 private:
  const fixtures::Tensor* Find(const std::string& name) const {
    for (const fixtures::Tensor& tensor : model_.tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }

  Vector Row(const std::string& name, size_t row) const {
    const fixtures::Tensor& tensor = *Find(name);
    const size_t width = static_cast<size_t>(tensor.shape[1]);
    return Vector(tensor.values.begin() + static_cast<int64_t>(row * width),
                  tensor.values.begin() + static_cast<int64_t>((row + 1) * width));
  }

  Vector Multiply(const std::string& name, const Vector& x) const {
    const fixtures::Tensor& weight = *Find(name + ".weight");
    const fixtures::Tensor* bias = Find(name + ".bias");
    Vector y(static_cast<size_t>(weight.shape[0]));
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = bias == nullptr ? 0.0 : bias->values[i];
      for (size_t j = 0; j < x.size(); ++j) y[i] += weight.values[i * x.size() + j] * x[j];
    }
    return y;
  }

  Vector Norm(const std::string& name, const Vector& x) const {
    const fixtures::Tensor& weight = *Find(name + ".weight");
    double squares = 0;
    for (double v : x) squares += v * v;
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps_);
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight.values[i];
    return y;
  }

  static void Add(Vector& to, const Vector& x) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += x[i];
  }

  void Rotate(Vector& heads, size_t position) const {
    const size_t half = head_dim_ / 2;
    for (size_t base = 0; base < heads.size(); base += head_dim_) {
      for (size_t i = 0; i < half; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim_);
        const double angle = static_cast<double>(position) * std::pow(theta_, exponent);
        const double a = heads[base + i], b = heads[base + half + i];
        heads[base + i] = a * std::cos(angle) - b * std::sin(angle);
        heads[base + half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  void Attend(const std::string& prefix, std::vector<Vector>& hidden) const {
    std::vector<Vector> queries, keys, values;
    for (size_t p = 0; p < hidden.size(); ++p) {
      const Vector x = Norm(prefix + "input_layernorm", hidden[p]);
      queries.push_back(Multiply(prefix + "self_attn.q_proj", x));
      keys.push_back(Multiply(prefix + "self_attn.k_proj", x));
      values.push_back(Multiply(prefix + "self_attn.v_proj", x));
      Rotate(queries.back(), p);
      Rotate(keys.back(), p);
    }
    for (size_t p = 0; p < hidden.size(); ++p) {
      // Row p sees keys max(0, p - window + 1) .. p.
      const size_t first = window_ > 0 && p + 1 > window_ ? p + 1 - window_ : 0;
      Vector out(num_heads_ * head_dim_, 0.0);
      for (size_t head = 0; head < num_heads_; ++head) {
        const size_t kv = head / (num_heads_ / num_kv_heads_) * head_dim_;
        Vector scores;
        for (size_t j = first; j <= p; ++j) {
          double score = 0;
          for (size_t i = 0; i < head_dim_; ++i) {
            score += queries[p][head * head_dim_ + i] * keys[j][kv + i];
          }
          scores.push_back(score / std::sqrt(static_cast<double>(head_dim_)));
        }
        const Vector weights = LogSoftmax(scores);
        for (size_t j = first; j <= p; ++j) {
          for (size_t i = 0; i < head_dim_; ++i) {
            out[head * head_dim_ + i] += std::exp(weights[j - first]) * values[j][kv + i];
          }
        }
      }
      Add(hidden[p], Multiply(prefix + "self_attn.o_proj", out));
    }
  }

  Vector Mlp(const std::string& prefix, const Vector& x) const {
    Vector gate = Multiply(prefix + "mlp.gate_proj", x);
    const Vector up = Multiply(prefix + "mlp.up_proj", x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
    return Multiply(prefix + "mlp.down_proj", gate);
  }

  const fixtures::ModelFiles& model_;
  size_t num_layers_ = 0, num_heads_ = 0, num_kv_heads_ = 0, head_dim_ = 0, window_ = 0;
  double eps_ = 0, theta_ = 0;
  bool tied_ = false;
};

}  // namespace

std::vector<std::vector<double>> ReferenceLogits(const fixtures::ModelFiles& model,
                                                 const std::vector<uint32_t>& tokens) {
  return ReferenceLlama(model).Run(tokens);
}

std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double v : logits) sum += std::exp(v - max);
  std::vector<double> result;
  for (double v : logits) result.push_back(v - max - std::log(sum));
  return result;
}

}  // namespace pagoda::engine
