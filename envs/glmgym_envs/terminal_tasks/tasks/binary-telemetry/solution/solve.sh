#!/bin/bash
set -eu
cd /work
perl -MJSON::PP -MCompress::Zlib=crc32 -e '
    my $json = JSON::PP->new->canonical->latin1(0)->utf8;
    open my $f, "<:raw", "telemetry.bin"; local $/; my $d = <$f>;
    my ($base, $name) = unpack "x6 V A8", $d; $name =~ s/\0+$//;
    my ($at, $valid, $unknown, $skipped) = (18, 0, 0, 0);
    open my $out, ">", "records.jsonl";
    while ($at < length $d) {
        my ($sync, $kind, $len) = $at + 4 <= length $d ? unpack("C C v", substr $d, $at, 4) : (0, 0, 0);
        my $end = $at + 4 + $len;
        unless ($sync == 0xa5 && $end + 4 <= length $d && crc32(substr $d, $at, $end - $at) == unpack "N", substr $d, $end, 4) {
            $at++; $skipped++; next;
        }
        my $body = substr $d, $at + 4, $len; $at = $end + 4;
        if ($kind < 1 || $kind > 3) { $unknown++; next }
        $valid++;
        my %r = (ms => $base * 1000 + unpack "V", $body);
        if ($kind == 1) {
            my @b = unpack "x4 C*", $body; my $flags = pop @b; my ($n, $shift) = (0, 0);
            for (@b) { $n |= ($_ & 127) << $shift; $shift += 7 }
            @r{qw(kind value flags)} = ("sample", $n & 1 ? -(($n >> 1) + 1) : $n >> 1, [grep { $flags >> $_ & 1 } 0..7]);
        } elsif ($kind == 2) {
            my $bits = unpack "b*", substr $body, 5;
            my @v = map { oct "0b" . reverse substr $bits, 12 * $_, 12 } 0 .. unpack("x4 C", $body) - 1;
            @r{qw(kind values)} = ("burst", \@v);
        } else {
            my $text = substr $body, 5, unpack "x4 C", $body; utf8::decode($text);
            @r{qw(kind text)} = ("text", $text);
        }
        print $out $json->encode(\%r), "\n";
    }
    open my $s, ">", "summary.json";
    print $s $json->encode({device => $name, valid => $valid, unknown => $unknown, skipped_bytes => $skipped});
'
