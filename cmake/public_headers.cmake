# The public headers, which users include as <tilegrad/PATH>. No other header is installed, and no other
# header is on a user's include path. A public header includes only public headers
# (tests/tree/public_headers.sh).
set(TILEGRAD_PUBLIC_HEADERS
    autograd/custom_op.h
    autograd/gradcheck/gradcheck.h
    autograd/gradients.h
    core/base/array.h
    core/base/attrs.h
    core/base/device.h
    core/base/dims.h
    core/base/dtype.h
    core/base/error.h
    core/base/host_view.h
    core/base/layout.h
    core/base/random.h
    core/base/range.h
    core/base/rng.h
    core/compile/compile.h
    core/report/graph_text.h
    core/graph/graph.h
    core/graph/op.h
    core/graph/parameter.h
    core/graph/tensor.h
    core/run/backend.h
    core/run/communicator.h
    core/report/bad_node.h
    core/run/cost.h
    core/run/log.h
    core/report/profile.h
    core/run/program.h
    core/run/shared_arena.h
    core/run/step.h
    io/checkpoints/checkpoint.h
    io/checkpoints/checkpoint_store.h
    io/checkpoints/manifest.h
    io/checkpoints/model_file.h
    io/files/file.h
    io/files/json.h
    io/files/mapped_file.h
    io/files/safetensors.h
    io/models/peft.h
    io/models/pretrained.h
    io/plots/heat_map.h
    io/plots/image.h
    io/plots/png_plot.h
    io/text/bpe.h
    io/text/hf_tokenizer.h
    io/text/text.h
    io/text/text_stream.h
    io/text/token_file.h
    io/text/token_view.h
    io/text/tokenizer.h
    io/text/words.h
    train/batches.h
    train/examples.h
    train/metrics.h
    train/progress.h
    train/sums.h
    train/trainer.h
    nn/generation/engine.h
    nn/generation/generate.h
    nn/generation/page_pool.h
    nn/generation/sampling.h
    nn/generation/scheduler.h
    nn/layers/attention.h
    nn/layers/autocast.h
    nn/layers/context_parallel.h
    nn/layers/kv_cache.h
    nn/layers/layers.h
    nn/layers/module.h
    nn/layers/params.h
    nn/models/architecture.h
    nn/models/deepseek.h
    nn/models/gpt.h
    nn/models/language_model.h
    nn/models/llama.h
    nn/models/lora.h
    nn/models/model.h
    nn/models/model_config.h
    nn/models/model_parts.h
    nn/models/rotary_stack.h
    nn/optimizers/optimizer.h
    nn/optimizers/optimizers.h
    nn/optimizers/shards.h
    train/perplexity.h
    train/training.h
    ops/block_norms.h
    ops/ceilings.h
    ops/flash_attn.h
    ops/linear_cross_entropy.h
    ops/ops.h
    ops/ranks.h
    ops/ring_attention.h
    ops/paged_attn.h
    parallel/group.h
    parallel/world.h
    tilegrad.h
    version.h
)
# In the build tree, <tilegrad/PATH> is a link to the file in the source tree.
set(TILEGRAD_PUBLIC_INCLUDE ${PROJECT_BINARY_DIR}/include)
file(REMOVE_RECURSE ${TILEGRAD_PUBLIC_INCLUDE})
foreach(header ${TILEGRAD_PUBLIC_HEADERS})
  get_filename_component(folder ${TILEGRAD_PUBLIC_INCLUDE}/tilegrad/${header} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${header} ${TILEGRAD_PUBLIC_INCLUDE}/tilegrad/${header} SYMBOLIC COPY_ON_ERROR)
endforeach()
