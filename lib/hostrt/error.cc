// The last-error slot, and the errors' names and texts.

#include <algorithm>
#include <iterator>

#include "error_texts.h"
#include "state.h"

namespace graphcache::hostrt {
namespace {

constexpr ErrorText kNoError = {-1, kUnrecognized, nullptr, kUnrecognized};

const ErrorText& text_of(int error) {
  const auto found = std::lower_bound(std::begin(kErrorTexts), std::end(kErrorTexts), error,
                                      [](const ErrorText& text, int number) { return text.number < number; });
  return found != std::end(kErrorTexts) && found->number == error ? *found : kNoError;
}

// Null for an error that the driver does not have.
CUresult give(const char** out, const ErrorText& error, const char* what) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = error.driver_name != nullptr ? what : nullptr;
  return error.driver_name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult name_of_error(CUresult error, const char** name) {
  return give(name, text_of(error), text_of(error).driver_name);
}
CUresult text_of_error(CUresult error, const char** text) { return give(text, text_of(error), text_of(error).text); }

}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

// enter() latches the error that it returns, so the slot is emptied after it.
cudaError_t CUDARTAPI cudaGetLastError(void) {
  const cudaError_t error = enter(Function::kGetLastError, [](const Call& call) { return call.thread.last_error; });
  this_thread().last_error = cudaSuccess;
  return error;
}

cudaError_t CUDARTAPI cudaPeekAtLastError(void) {
  return enter(Function::kPeekAtLastError, [](const Call& call) { return call.thread.last_error; });
}

const char* CUDARTAPI cudaGetErrorName(cudaError_t error) { return text_of(error).name; }

const char* CUDARTAPI cudaGetErrorString(cudaError_t error) { return text_of(error).text; }

}  // extern "C"
