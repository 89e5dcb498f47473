#include <tilegrad/core/base/attrs.h>

namespace tg {

void Attrs::refuse() {
  throw Error("[attrs] an op was given attributes of another op");
}

}  // namespace tg
