export TP=4
echo start
bash examples/train_model.sh 2>&1 | tee log
