// A neuron that fires: 1 where x > 0, else 0. Its true gradient is 0 nearly everywhere, which teaches nothing; so
// back-propagation uses that of a soft step, 1 / (1 + slope * |x|)^2. This is what makes it an operator of its own.

#include <cmath>

#include <poptorch/custom_op.hpp>

using namespace poptorch;

namespace {

class SpikeGradOp : public Op {
public:
  explicit SpikeGradOp(float slope) : slope_(slope) {}

  void setup() override { outInfo(0) = inInfo(0); }

  void compute(const Kernel &kernel) const override {
    forFloatingType(kernel.inInfo(0).dataType(), [&](auto type) {
      using T = decltype(type);
      const T *gradient = kernel.in<T>(0), *x = kernel.in<T>(1);
      T *result = kernel.out<T>(0);
      for (int64_t i = 0; i < kernel.inInfo(0).nelms(); ++i) {
        float soft = 1.0f + slope_ * std::fabs(float(x[i]));
        result[i] = float(gradient[i]) / (soft * soft);
      }
    });
  }

  // Its inputs are the gradient of output 0 and input 0 of the operator below; it makes the gradient of that input.
  std::vector<GradInOutMapper> gradInputInfo() const override {
    return {{0, 0, GradOpInType::GradOut}, {1, 0, GradOpInType::In}};
  }
  std::map<int, int> gradOutToNonGradIn() const override { return {{0, 0}}; }

private:
  float slope_;
};

class SpikeOp : public Op {
public:
  explicit SpikeOp(const Attributes &attributes) : slope_(attributes.getAttribute<Attributes::Float>("slope", 4.0f)) {}

  void setup() override { outInfo(0) = inInfo(0); } // one output, like the input

  void compute(const Kernel &kernel) const override {
    forFloatingType(kernel.inInfo(0).dataType(), [&](auto type) {
      using T = decltype(type);
      const T *x = kernel.in<T>(0);
      T *result = kernel.out<T>(0);
      for (int64_t i = 0; i < kernel.inInfo(0).nelms(); ++i)
        result[i] = float(x[i]) > 0.0f ? 1.0f : 0.0f;
    });
  }

  std::vector<std::unique_ptr<Op>> getGradOps() const override {
    std::vector<std::unique_ptr<Op>> ops;
    ops.push_back(std::make_unique<SpikeGradOp>(slope_));
    return ops;
  }

private:
  float slope_;
};

const OpCreator<SpikeOp> registration(OperatorIdentifier{"com.acme", "Spike", 1, 1, 1});

} // namespace
