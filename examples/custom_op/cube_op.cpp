// A custom operator with two inputs, two outputs and a gradient: cube(x, b) = (x³ + b, x³).

#include <poptorch/custom_op.hpp>

using namespace poptorch;

namespace {

const OperatorIdentifier cube{"com.acme", "Cube", 1, 2, 2};

// d/dx: 3x² times the gradients of both outputs. d/db: the gradient of the first output.
class CubeGradOp : public Op {
public:
  void setup() override {
    outInfo(0) = inInfo(2);
    outInfo(1) = inInfo(3);
  }

  void compute(const Kernel &kernel) const override {
    forFloatingType(kernel.inInfo(2).dataType(), [&](auto type) {
      using T = decltype(type);
      const T *ofSum = kernel.in<T>(0), *ofCube = kernel.in<T>(1), *x = kernel.in<T>(2);
      T *ofX = kernel.out<T>(0), *ofB = kernel.out<T>(1);
      for (int64_t i = 0; i < kernel.inInfo(2).nelms(); ++i) {
        const float value = x[i];
        ofX[i] = 3.0f * value * value * (float(ofSum[i]) + float(ofCube[i]));
        ofB[i] = ofSum[i];
      }
    });
  }

  std::vector<GradInOutMapper> gradInputInfo() const override {
    return {{0, 0, GradOpInType::GradOut},
            {1, 1, GradOpInType::GradOut},
            {2, 0, GradOpInType::In},
            {3, 1, GradOpInType::In}};
  }
  std::map<int, int> gradOutToNonGradIn() const override { return {{0, 0}, {1, 1}}; }
};

class CubeOp : public Op {
public:
  void setup() override {
    if (inShape(0) != inShape(1) || inType(0) != inType(1))
      throw std::runtime_error("Cube: x and b must have the same shape and type");
    outInfo(0) = inInfo(0);
    outInfo(1) = inInfo(0);
  }

  void compute(const Kernel &kernel) const override {
    forFloatingType(kernel.inInfo(0).dataType(), [&](auto type) {
      using T = decltype(type);
      const T *x = kernel.in<T>(0), *b = kernel.in<T>(1);
      T *sum = kernel.out<T>(0), *power = kernel.out<T>(1);
      for (int64_t i = 0; i < kernel.inInfo(0).nelms(); ++i) {
        const float value = x[i];
        power[i] = value * value * value;
        sum[i] = value * value * value + float(b[i]);
      }
    });
  }

  std::vector<std::unique_ptr<Op>> getGradOps() const override {
    std::vector<std::unique_ptr<Op>> ops;
    ops.push_back(std::make_unique<CubeGradOp>());
    return ops;
  }

  // Four floating point operations per element, on 1472 tiles that handle two elements a cycle.
  double cycles() const override { return 4.0 * double(inInfo(0).nelms()) / (2.0 * 1472.0); }
};

const OpCreator<CubeOp> registration(cube);

} // namespace
