// The data of train --examples: prompts and what is to follow them, an example in each row.
#pragma once

#include "tools/train/data.h"

namespace tg {

// The most tokens in a row that an example of the file needs.
std::int64_t longest_example(const std::string& file, const BaseModel& base);
// Throws as read_examples and ExampleBatches, and Error if a resumed run was started with other data.
std::unique_ptr<TrainData> open_examples(const DataOptions& o, const std::optional<SavedData>& saved);

}  // namespace tg
