# The model's shape, as the trainer's own file of this name gives it.
# shellcheck shell=bash disable=SC2034
MODEL_ARGS=(
    --swiglu
    --num-layers 36
    --hidden-size 2560
    --ffn-hidden-size 9728
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
)
