#!/bin/bash
set -eu
cd /work
perl -MTime::Local=timegm -MPOSIX=strftime -e '
    my %month; @month{qw(jan feb mar apr may jun jul aug sep oct nov dec)} = 1..12;
    my %day; @day{qw(sun mon tue wed thu fri sat)} = 0..6;
    my %short = ("\@hourly" => "0 * * * *", "\@monthly" => "0 0 1 * *");
    sub matches {
        my ($field, $value, $low, $high, $names) = @_;
        for my $part (split /,/, lc $field) {
            my ($span, $step) = split m{/}, $part;
            my ($a, $b) = $span eq "*" ? ($low, $high) : split /-/, $span;
            $b //= $a;
            $_ = $names->{$_} // $_ for $a, $b;
            return 1 if $value >= $a && $value <= $b && ($value - $a) % ($step || 1) == 0;
        }
        return 0;
    }
    open my $m, "<", "moments.txt"; my @moments = map { s/\s//gr } <$m>;
    open my $c, "<", "crontab"; print "command,moment,first,second,third\n";
    while (<$c>) {
        next if /^#/;
        my @f = split; my $command = pop @f;
        @f = split / /, $short{$f[0]} if $short{$f[0]};
        for my $moment (@moments) {
            my ($y, $mo, $d, $h, $mi) = $moment =~ /(\d+)-(\d+)-(\d+)T(\d+):(\d+)/;
            my $now = timegm(0, $mi, $h, $d, $mo - 1, $y);
            my @found;
            for (my $date = timegm(0, 0, 0, $d, $mo - 1, $y); @found < 3; $date += 86400) {
                my @t = gmtime $date;
                next unless matches($f[3], $t[4] + 1, 1, 12, \%month);
                my $dom = matches($f[2], $t[3], 1, 31, {});
                my $dow = matches($f[4], $t[6], 0, 6, \%day) || ($f[4] !~ /^\*/ && $t[6] == 0 && matches($f[4], 7, 0, 7, \%day));
                my $both = $f[2] =~ /^\*/ || $f[4] =~ /^\*/;
                next unless $both ? $dom && $dow : $dom || $dow;
                for my $hour (grep { matches($f[1], $_, 0, 23, {}) } 0..23) {
                    for my $minute (grep { matches($f[0], $_, 0, 59, {}) } 0..59) {
                        my $time = $date + 3600 * $hour + 60 * $minute;
                        push @found, strftime("%Y-%m-%dT%H:%M", gmtime $time) if $time > $now;
                    }
                }
            }
            print join(",", $command, $moment, @found[0..2]), "\n";
        }
    }' > next.csv
