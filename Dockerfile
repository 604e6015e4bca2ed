# make wheel && docker build -t manyseeds .
# docker run --rm -v "$PWD/results/local:/work/results/local" manyseeds ppo --env CartPole-v1
FROM python:3.11-slim
WORKDIR /work
COPY requirements.lock dist/*.whl ./
# The CPU build of the locked torch, and what the wheel needs.
RUN pip install --no-cache-dir "$(grep '^torch==' requirements.lock)" \
    --index-url https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir *.whl && rm *.whl
ENTRYPOINT ["manyseeds"]
