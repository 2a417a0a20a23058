#!/bin/bash
# Trains one model on two nodes of four GPUs, one process a node. From the checkout, on a file system that all nodes
# share: sbatch scripts/slurm_example.sh --config=configs/cifar10_resnet18.py --workdir=runs/cifar10
# More flags of jacreg-train can follow. The same command goes on from the last checkpoint.
#SBATCH --job-name=jacreg
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=jacreg-%j.log

set -euo pipefail
# JAX reads the coordinator, the number of processes and each one's index from SLURM. TERM comes two minutes before
# the time is up: the run writes a checkpoint and ends with exit code 143.
srun --kill-on-bad-exit=1 .venv/bin/jacreg-train --distributed "$@"
