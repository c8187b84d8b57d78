// A custom operator with an attribute: leaky ReLU, x < 0 ? alpha * x : x.

#include <poptorch/custom_op.hpp>

using namespace poptorch;

namespace {

class LeakyReluGradOp : public Op {
public:
  explicit LeakyReluGradOp(float alpha) : alpha_(alpha) {}

  void setup() override { outInfo(0) = inInfo(0); }

  void compute(const Kernel &kernel) const override {
    forFloatingType(kernel.inInfo(0).dataType(), [&](auto type) {
      using T = decltype(type);
      const T *gradient = kernel.in<T>(0), *x = kernel.in<T>(1);
      T *result = kernel.out<T>(0);
      for (int64_t i = 0; i < kernel.inInfo(0).nelms(); ++i)
        result[i] = float(x[i]) < 0.0f ? alpha_ * float(gradient[i]) : float(gradient[i]);
    });
  }

  std::vector<GradInOutMapper> gradInputInfo() const override {
    return {{0, 0, GradOpInType::GradOut}, {1, 0, GradOpInType::In}};
  }
  std::map<int, int> gradOutToNonGradIn() const override { return {{0, 0}}; }

private:
  float alpha_;
};

class LeakyReluOp : public Op {
public:
  explicit LeakyReluOp(const Attributes &attributes)
      : alpha_(attributes.getAttribute<Attributes::Float>("alpha", 0.01f)) {}

  void setup() override { outInfo(0) = inInfo(0); }

  void compute(const Kernel &kernel) const override {
    forFloatingType(kernel.inInfo(0).dataType(), [&](auto type) {
      using T = decltype(type);
      const T *x = kernel.in<T>(0);
      T *result = kernel.out<T>(0);
      for (int64_t i = 0; i < kernel.inInfo(0).nelms(); ++i)
        result[i] = float(x[i]) < 0.0f ? alpha_ * float(x[i]) : float(x[i]);
    });
  }

  std::vector<std::unique_ptr<Op>> getGradOps() const override {
    std::vector<std::unique_ptr<Op>> ops;
    ops.push_back(std::make_unique<LeakyReluGradOp>(alpha_));
    return ops;
  }

private:
  float alpha_;
};

const OpCreator<LeakyReluOp> registration(OperatorIdentifier{"com.acme", "LeakyRelu", 1, 1, 1});

} // namespace
