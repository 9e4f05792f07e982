"""One process of MXNet's asynchronous server (`dist_async`): what ours is measured against.

It runs with an interpreter that has mxnet 1.9.1 and numpy below 1.24, and knows nothing of Purine.
`DMLC_ROLE` and its companions in the environment say whether it is the scheduler, a server or a
worker; importing mxnet turns it into one of the first two. Each worker trains LeNet on its share
of the images. Behind the last epoch the first worker tests the parameters of the server.

    python rival_mxnet.py DATA.npz --batch 32 --epochs 5 --lr 0.0025 --momentum 0.9 --decay 5e-4
"""

import argparse
import json
import time

import mxnet as mx
import numpy as np


def lenet():
    data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
    x = mx.sym.Convolution(data, num_filter=20, kernel=(5, 5), name="conv1")
    x = mx.sym.Pooling(x, pool_type="max", kernel=(2, 2), stride=(2, 2))
    x = mx.sym.Convolution(x, num_filter=50, kernel=(5, 5), name="conv2")
    x = mx.sym.Pooling(x, pool_type="max", kernel=(2, 2), stride=(2, 2))
    x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=500, name="fc1"), act_type="relu")
    x = mx.sym.FullyConnected(x, num_hidden=10, name="fc2")
    return mx.sym.SoftmaxOutput(x, label, name="softmax")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--batch", type=int, required=True, help="images of one worker")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--momentum", type=float, required=True)
    parser.add_argument("--decay", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", required=True, help="where the first worker writes its figures")
    options = parser.parse_args()
    mx.random.seed(options.seed)
    store = mx.kv.create("dist_async")  # does not return in the scheduler and in servers
    with np.load(options.data) as arrays:
        images, labels = arrays["train_images"], arrays["train_labels"]
        test = mx.io.NDArrayIter(arrays["test_images"], arrays["test_labels"], 100)
    rank, workers = store.rank, store.num_workers
    order = np.random.RandomState(options.seed).permutation(len(images))[rank::workers]
    train = mx.io.NDArrayIter(
        images[order], labels[order], options.batch, shuffle=True, last_batch_handle="discard"
    )
    net = mx.mod.Module(lenet())
    net.bind(train.provide_data, train.provide_label)
    net.init_params(mx.init.Xavier(rnd_type="uniform", factor_type="in", magnitude=3))
    settings = {
        "learning_rate": options.lr,
        "momentum": options.momentum,
        "wd": options.decay,
        "rescale_grad": 1.0 / options.batch,
    }
    net.init_optimizer(kvstore=store, optimizer="sgd", optimizer_params=settings)
    store._barrier()
    begun, seen = time.time(), 0
    for _ in range(options.epochs):
        train.reset()
        for batch in train:
            net.forward_backward(batch)
            net.update()
            seen += options.batch
    mx.nd.waitall()  # what was enqueued is complete
    mine = time.time() - begun
    store._barrier()
    spent = time.time() - begun
    if rank == 0:
        arguments, others = net.get_params()
        for name, value in arguments.items():
            store.pull(name, out=value)
        fresh = mx.mod.Module(lenet())
        fresh.bind(test.provide_data, test.provide_label, for_training=False)
        fresh.set_params(arguments, others)
        accuracy = dict(fresh.score(test, "acc"))["accuracy"]
        figures = {"accuracy": accuracy, "images": seen * workers, "seconds": spent, "first": mine}
        with open(options.result, "w") as file:
            json.dump(figures, file)
    store._barrier()


if __name__ == "__main__":
    main()
