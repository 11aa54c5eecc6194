# words.pl FILE ROUNDS: hashes, regular expressions, sorting, formats, reading and writing files, an alarm, sleeping by select.
use strict;
use warnings;
my ($path, $rounds) = @ARGV;
$| = 1;
my $alarms = 0;
$SIG{ALRM} = sub { $alarms++ };
open(my $report, '+>', 'report') or die "report: $!";
for my $round (1 .. $rounds) {
    my (%count, $letters);
    open(my $file, '<', $path) or die "$path: $!";
    while (my $line = <$file>) {
        $line =~ s/(\w)(\w*)/$2$1/g if $round % 2;
        $count{lc $1}++ while $line =~ /(\w{3,})/g;
        $letters += length $line;
    }
    close($file);
    my @most = (sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count)[0 .. 9];
    printf $report "%-12s %6d\n", $_, $count{$_} for @most;
    select(undef, undef, undef, 0.05);
    my $before = $alarms;
    alarm 1 if $round == 1;
    sleep 5 if $round == 1;    # the alarm ends it
    printf "round %d: %d letters, %d words, alarms %d\n", $round, $letters, scalar(keys %count), $alarms;
}
seek($report, 0, 0);
my @lines = <$report>;
printf "%d lines of report, last %s", scalar(@lines), $lines[-1];
