#!/bin/bash
set -eu
cd /work
(cat logs/access.log; zcat logs/access.log.1.gz logs/access.log.2.gz) | perl -MJSON::PP -ne '
    chomp;
    if (m{^(\S+) \S+ \S+ \[(\d\d)/Mar/2026:([01]\d|2[0-3]):[0-5]\d:[0-5]\d \+0000\] "\S+ ([^ ?"]+)\S* [^"]+" (\d)\d\d (\d+|-) "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*"$}) {
        $n++; $ip{$1}++; $h{"2026-03-$2T$3"}++; $st{"$5xx"}++;
        my $size = $6 eq "-" ? 0 : $6;
        $b += $size; $p{$4} += $size;
    } else { $bad++ }
    END {
        my @top = (sort { $p{$b} <=> $p{$a} || $a cmp $b } keys %p)[0..4];
        my ($hour) = sort { $h{$b} <=> $h{$a} || $a cmp $b } keys %h;
        print encode_json({requests => $n, malformed => $bad, status => \%st, clients => scalar(keys %ip), bytes => $b,
            top_paths => [map { [$_, $p{$_}] } @top], busiest_hour => $hour});
    }' > report.json
