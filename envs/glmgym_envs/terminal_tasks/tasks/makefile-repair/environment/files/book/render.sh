sed -f style.sed "$1"
