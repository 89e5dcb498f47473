# The headers that users include, as <tilegrad/PATH>: no other header is installed or lies on a consumer's include path.
# A public header includes public headers only (tests/tree/public_headers.sh).
set(TILEGRAD_PUBLIC_HEADERS
    autograd/custom_op.h
    autograd/gradcheck.h
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
    core/base/rng.h
    core/compile/compile.h
    core/report/graph_text.h
    core/graph/graph.h
    core/graph/op.h
    core/graph/parameter.h
    core/graph/tensor.h
    core/run/backend.h
    core/report/bad_node.h
    core/run/cost.h
    core/run/log.h
    core/report/profile.h
    core/run/program.h
    core/run/step.h
    io/checkpoints/checkpoint.h
    io/checkpoints/checkpoint_store.h
    io/checkpoints/manifest.h
    io/checkpoints/model_file.h
    io/files/file.h
    io/files/json.h
    io/files/mapped_file.h
    io/files/safetensors.h
    io/plots/heat_map.h
    io/plots/image.h
    io/plots/png_plot.h
    io/text/bpe.h
    io/text/text.h
    io/text/token_file.h
    io/text/token_view.h
    io/text/tokenizer.h
    io/text/words.h
    io/training/batches.h
    io/training/metrics.h
    io/training/progress.h
    io/training/sums.h
    io/training/text_batches.h
    io/training/trainer.h
    nn/generation/generate.h
    nn/generation/page_pool.h
    nn/generation/sampling.h
    nn/layers/attention.h
    nn/layers/autocast.h
    nn/layers/kv_cache.h
    nn/layers/latent_attention.h
    nn/layers/layers.h
    nn/layers/mlp.h
    nn/layers/module.h
    nn/layers/params.h
    nn/layers/weight.h
    nn/models/architecture.h
    nn/models/architectures.h
    nn/models/attention_maps.h
    nn/models/block.h
    nn/models/deepseek.h
    nn/models/gpt.h
    nn/models/language_model.h
    nn/models/llama.h
    nn/models/model.h
    nn/models/model_config.h
    nn/models/model_parts.h
    nn/models/rotary_stack.h
    nn/optimizers/adamw.h
    nn/optimizers/muon.h
    nn/optimizers/optimizer.h
    nn/optimizers/schedule.h
    nn/optimizers/sgd.h
    nn/training/largest_batch.h
    nn/training/training.h
    ops/ceilings.h
    ops/flash_attn.h
    ops/ops.h
    ops/paged_attn.h
    tilegrad.h
    version.h
)
# In the build tree <tilegrad/PATH> is a link to the file in the source tree.
set(TILEGRAD_PUBLIC_INCLUDE ${PROJECT_BINARY_DIR}/include)
file(REMOVE_RECURSE ${TILEGRAD_PUBLIC_INCLUDE})
foreach(header ${TILEGRAD_PUBLIC_HEADERS})
  get_filename_component(folder ${TILEGRAD_PUBLIC_INCLUDE}/tilegrad/${header} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${header} ${TILEGRAD_PUBLIC_INCLUDE}/tilegrad/${header} SYMBOLIC COPY_ON_ERROR)
endforeach()
