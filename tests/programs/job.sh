# job.sh ROUNDS: loops, pipes, here-documents, traps, subshells, background jobs and their exit statuses. $RUN stands before what may move.
rounds=$1
trap 'echo "trapped USR1"' USR1
trap 'echo "leaving with $?"' EXIT
total=0
for ((round = 0; round < rounds; round++)); do
    for ((i = 0; i < 20000; i++)); do ((total = (total * 31 + i) % 1000003)); done
    printf '%s\n' {1..200} | $RUN sort -rn | head -5 | tr '\n' ' '
    echo "round $round total $total"
    (cd / && pwd; exit 3); echo "subshell gave $?"
    (for ((i = 0; i < 30000; i++)); do :; done; exit $((round % 7))) &
    first=$!
    $RUN awk -v n="$round" 'BEGIN { for (i = 0; i < 300000; i++) s += i * n; print "background", s }' > "background-$round" &
    second=$!
    count=0
    while read -r word rest; do ((count += ${#word} + ${#rest})); done <<END
here is a document
of round $round
with three lines
END
    echo "document has $count letters"
    wait $first; echo "first ended with $?"
    wait $second; echo "second ended with $?"
    cat "background-$round"
    kill -USR1 $$
    sum=$(seq 1 1000 | paste -sd+ | $RUN bc)
    [[ $sum == 500500 ]] && echo "sum is $sum"
    sleep 0.05
done
exit 5
