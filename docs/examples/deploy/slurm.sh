#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
# Four ranks under bsguard. It is given to the launcher, whose children inherit it, and not to srun.
set -euo pipefail

export BSGUARD_DIR="${SLURM_SUBMIT_DIR:-$PWD}/bsguard"
srun bsguard run -- python -m paddle.distributed.launch train.py
