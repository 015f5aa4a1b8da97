# docker build -t train .
# docker run --gpus all --shm-size=8g -v /DATA:/data train imagenet_ddp.py -a resnet50 \
#     --output-dir /data/resnet50 /data/imagenet
# CUDA comes with PyTorch's wheels; the host has the driver and NVIDIA's container toolkit.
FROM python:3.12
WORKDIR /train
# What the scripts need is installed before they are copied, so a change of the code keeps this layer.
# trainparts is then without modules there; the scripts take the folder beside them.
COPY pyproject.toml .
RUN pip install --no-cache-dir .
COPY imagenet_*.py text_*.py ./
COPY trainparts trainparts
COPY recipes recipes
RUN useradd --create-home --uid 1000 train
USER 1000
ENTRYPOINT ["python"]
CMD ["imagenet_ddp.py", "--help"]
