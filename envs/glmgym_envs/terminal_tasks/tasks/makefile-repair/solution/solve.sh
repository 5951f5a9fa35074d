#!/bin/bash
set -eu
cd /work/book
cat > Makefile <<'EOF'
# The book
CHAPTERS = out/ch1.txt out/ch2.txt out/ch3.txt

.PHONY: all clean

all: out/book.txt out/words.txt

out/book.txt: front.txt $(CHAPTERS) VERSION
	mkdir -p out
	cat front.txt $(CHAPTERS) > $@
	printf "version: " >> $@
	cat VERSION >> $@

out/words.txt: out/book.txt
	wc -w < out/book.txt > $@

out/%.txt: src/%.md render.sh style.sed
	mkdir -p out
	sh render.sh $< > $@

clean:
	rm -rf out
EOF
python3 mk.py
